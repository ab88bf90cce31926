-- needs: entries fifo joins transitions continuations claims
-- Claims messages. Arguments and reply: see `claim` in lib/claims.lua.
write_even_if_full()
local reply = claim(args)
publish_wakeup() -- a join that has ended may have a continuation of another topic
return reply
