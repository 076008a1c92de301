"""The verbs of the program, each described once: what is asked, what is done, and where it may be done."""
