"""What a pretrained encoder is worth: held-out loss, fine-tuning, metrics."""
