"""What runs beside the model, in whatever process that is."""
