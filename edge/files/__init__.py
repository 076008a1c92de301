"""Reading and writing the files of users and of the program."""
