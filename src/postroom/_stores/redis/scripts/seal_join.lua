-- needs: entries joins
-- Ends the attaching of steps to an open join. Arguments: `join`. Returns 1 if it was not sealed before.
local record = joins and joins.load(args.join)
if not record then return NO_JOIN end
if record.status ~= 'pending' or record.expected then return JOIN_ENDED end
if record.sealed then return 0 end
write_even_if_full()
record.sealed, record.updated_at = true, now
joins.save(args.join, record)
joins.wake(record)
publish_wakeup()
return 1
