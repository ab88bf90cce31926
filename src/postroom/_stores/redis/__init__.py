"""The store on Redis: verbs that run Lua scripts. layout.md describes the keys."""
