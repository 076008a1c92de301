"""Files that the program writes and reads back: each is damaged in every way (`base.py`)."""
