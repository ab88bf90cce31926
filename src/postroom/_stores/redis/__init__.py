"""The store on Redis: verbs that run scripts. What stands where is in layout.md."""
