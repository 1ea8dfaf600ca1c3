"""Memory beyond the card: what may leave it, when, and how it comes back."""
