-- needs: entries fifo joins transitions
-- Ends a join as cancelled, and its continuation if that still waits. Arguments: `join`. Returns 1 if the join was pending.
local record = joins and joins.load(args.join)
if not record then return NO_JOIN end
if record.status ~= 'pending' then return 0 end
write_even_if_full()
joins.finish(args.join, record, 'cancelled')
if record.wait and call('ZSCORE', WAITS, record.wait) then
  finish(load(record.wait), 'cancelled', '', policy.blank)
end
publish_wakeup()
return 1
