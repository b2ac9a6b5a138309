"""The loop over steps on a GPU, on chip."""
