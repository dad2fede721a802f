"""Many items' work in rounds: asked for together, journalled, resumed."""
