"""Devices, which hold bytes and search vectors. Each device is one class."""
