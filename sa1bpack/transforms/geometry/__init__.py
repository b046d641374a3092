"""The place of the image: maps, the frame of an image on the canvas, and the steps that move it."""
