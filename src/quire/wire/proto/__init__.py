"""Classes generated from the .proto files in this directory by `make proto`; never edited by hand."""
