"""One server for the machine: endpoints that other tools know, on models that are held once."""
