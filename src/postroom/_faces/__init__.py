"""The faces of a box: they check arguments, call a store's verbs and shape the answer."""
