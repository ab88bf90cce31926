-- needs: entries known_keys fifo joins transitions settlements continuations claims
-- Settles and claims. Arguments: `acks` and `others` (see `settle` in lib/settlements.lua), `request` (see `claim` in
-- lib/claims.lua). Returns the reply of `claim`, and behind it that of `settle`.
write_even_if_full()
local lost = settle(args.acks, args.others)
if lost == AMBIGUOUS then return AMBIGUOUS end
local reply = claim(args.request)
reply[#reply + 1] = lost
publish_wakeup()
return reply
