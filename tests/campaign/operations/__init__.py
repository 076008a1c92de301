"""Operations that change what is stored: each is killed, refused and cut off from power at every step (`base.py`)."""
