-- needs: entries names lines endings purging
-- Deletes old messages of one state, as many as one call should; answers how many, and where to go on.
even_if_full()
if given.state == 'd' then
  local gone, stay, looked = purge_done(now - given.age, given.limit, given.skip)
  return {gone, given.skip + stay, looked}
end
-- The dead and the merely seen: in id order.
local set = given.state == 'x' and DLQ or SEEN
local ids = call('ZRANGE', set, given.skip, given.skip + given.limit - 1)
local old, contents = old_ones(ids, now - given.age, given.state == 's')
delete(old, contents, set)
tell()
return {#old, given.skip + #ids - #old, #ids}
