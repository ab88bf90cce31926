-- needs: entries known_keys fifo joins transitions settlements
-- Settles claimed messages. Arguments: `acks` and `others`. Reply: see `settle` in lib/settlements.lua.
write_even_if_full()
local lost = settle(args.acks, args.others)
if lost ~= AMBIGUOUS then publish_wakeup() end
return lost
