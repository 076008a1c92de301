"""Operations that change stored data: each is killed, refused and cut off from power at every step (`base.py`)."""
