"""Clock, files and the worker thread as interfaces, and the real ones. The simulator brings its own."""
