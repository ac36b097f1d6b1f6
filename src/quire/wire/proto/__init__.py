"""Classes generated from the .proto files beside them by `make proto`; never edited by hand."""
