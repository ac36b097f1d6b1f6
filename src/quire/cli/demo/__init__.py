"""The demo: the main job from an input to a table, with servers killed on the way, narrated."""
