"""Parts of `postroom.spi`, which exports their public names."""
