"""What both screens are made of: static files of our own, two libraries, and how they are served."""
