-- needs: entries known_keys fifo joins transitions settlements continuations claims
-- Settles and claims. Arguments: `acks` and `others` (see `settle` in lib/settlements.lua), `request` (see `claim` in
-- lib/claims.lua). Returns the reply of `settle`, then that of `claim`.
write_even_if_full()
local lost_acks, lost_others = settle(args.acks, args.others)
if not lost_acks then return AMBIGUOUS end
local reply = {lost_acks, lost_others, claim(args.request)}
publish_wakeup()
return reply
