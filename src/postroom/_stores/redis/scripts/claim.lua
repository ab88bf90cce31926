-- needs: entries fifo transitions claims
-- Claims messages. Arguments and reply: see `claim` in lib/claims.lua.
write_even_if_full()
return {claim(args)}
