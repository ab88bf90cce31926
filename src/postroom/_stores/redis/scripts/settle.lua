-- needs: entries known_keys fifo joins transitions settlements
-- Settles claimed messages. Arguments: `acks` and `others`. Reply: see `settle` in lib/settlements.lua.
write_even_if_full()
local lost_acks, lost_others = settle(args.acks, args.others)
if not lost_acks then return AMBIGUOUS end
publish_wakeup()
return {lost_acks, lost_others}
