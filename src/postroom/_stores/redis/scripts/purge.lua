-- needs: entries known_keys fifo joins transitions join_cleaning cleaning
-- Deletes old messages of one state. Arguments: `state`, `age` in microseconds, `limit`, `skip`: messages that earlier calls
-- have read and left. Returns the number of deleted messages, the `skip` of the next call, the number of messages read, and 1
-- if there are more old joins: they are deleted with done messages, in pieces.
write_even_if_full()
if args.state == 'd' then
  local deleted, stay, read = purge_done(now - args.age, args.limit, args.skip)
  return {deleted, args.skip + stay, read, joins and joins.purge(now - args.age, args.limit) and 1 or 0}
end
local set = args.state == 'x' and DLQ or SEEN -- both in id order
local ids = call('ZRANGE', set, args.skip, args.skip + args.limit - 1)
local old, contents = deletable(ids, now - args.age, args.state == 's')
delete(old, contents, set)
publish_wakeup()
return {#old, args.skip + #ids - #old, #ids, 0}
