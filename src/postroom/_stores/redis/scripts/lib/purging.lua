-- Deleting messages for good.

local function remove_from_collapse(key, id)
  local left = {}
  for other in each_id(call('HGET', COLLAPSE, key) or '') do
    if other ~= id then left[#left + 1] = other end
  end
  if #left == 0 then call('HDEL', COLLAPSE, key) else call('HSET', COLLAPSE, key, concat(left)) end
end

-- Messages that stand in `set` and in no other of the sets by state.
local function delete(ids, contents, set)
  if #ids == 0 then return end
  local pages = {}
  for index, id in ipairs(ids) do
    local content, page = contents[index], math.floor(id / PAGE)
    pages[page] = (pages[page] or 0) + 1
    drop_key(id, content.source, content.message_id)
    if content.collapse then remove_from_collapse(content.collapse, id) end
    leave_line({id = id})
  end
  for page, count in pairs(pages) do
    if call('HINCRBY', PAGES, page, -count) == 0 then
      call('HDEL', PAGES, page)
      call('ZREM', INDEX, page)
    end
  end
  write('HDEL', MESSAGES, ids)
  write('HDEL', STATES, ids)
  write('ZREM', set, ids)
end

-- Of these, those that a purge may delete.
local function old_ones(ids, cutoff, sliding)
  local records, bodies = fetch('HMGET', STATES, ids), fetch('HMGET', MESSAGES, ids)
  local old, contents = {}, {}
  for index, id in ipairs(ids) do
    local progress, content = view(records[index]), content_of(bodies[index])
    local last_seen = progress[LAST_SEEN] ~= 0 and progress[LAST_SEEN] or content.first_seen
    local is_done = progress[STATE] == 'd'
    -- Cleaning up must not shorten the memory that deduplicates.
    local deduplicates = is_done and policy.window and content.first_seen + policy.window > now
    local too_young = progress[COMPLETED] ~= 0 and progress[COMPLETED] > cutoff
    if not (deduplicates or too_young or (sliding and last_seen > cutoff)) then
      old[#old + 1], contents[#contents + 1] = id, content
    end
  end
  return old, contents
end

-- Done messages, those that were done first; `skip` of them are known to stay. Answers how many went, and how many stay.
local function purge_done(cutoff, most, skip)
  local ids = call('ZRANGEBYSCORE', DONE, '-inf', cutoff, 'LIMIT', skip, most)
  local old, contents = old_ones(ids, cutoff, policy.sliding)
  delete(old, contents, DONE)
  return #old, #ids - #old, #ids
end

-- A few that are old enough, from anywhere among them: those that must stay do not keep the others from being found.
local function sweep(cutoff, most)
  local count = call('ZCOUNT', DONE, '-inf', cutoff)
  if count > 0 then purge_done(cutoff, most, count > most and now % (count - most + 1) or 0) end
end
