"""Everything that knows PyTorch's insides; nothing here is imported before it is asked for."""
