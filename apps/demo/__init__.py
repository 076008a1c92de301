"""The main job on real text that comes with the installation."""
