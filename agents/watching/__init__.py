"""What can be seen of a training run while it goes on: scalars, validation, pictures, the progress bar."""
