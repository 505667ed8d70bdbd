"""MLflow as a live mirror of the store: it can be thrown away and rebuilt. Training never imports this package."""
