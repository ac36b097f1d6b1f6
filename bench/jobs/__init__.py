"""The jobs of our load client, one module per claim or family of claims; `tools/java-bench` has the same jobs in Java.

A job is a coroutine that takes a `World` and its words, and returns the figures of one JSON object.
"""
