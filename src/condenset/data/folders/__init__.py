"""Folders of image files: find splits and classes, check the files and decode them."""
