"""What is made of a checkout for others to install: wheels, a source archive, an image."""
