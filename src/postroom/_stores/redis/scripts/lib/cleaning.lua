-- Cleaning: deletes messages.

local function remove_from_collapse(key, id)
  local left = {}
  for other in each_id(call('HGET', COLLAPSE, key) or '') do
    if other ~= id then left[#left + 1] = other end
  end
  if #left == 0 then call('HDEL', COLLAPSE, key) else call('HSET', COLLAPSE, key, concat(left)) end
end

-- Deletes messages that are in `set` and in no other set of a state.
local function delete(ids, contents, set)
  if #ids == 0 then return end
  local pages = {}
  for index, id in ipairs(ids) do
    local content, page = contents[index], math.floor(id / PAGE)
    pages[page] = (pages[page] or 0) + 1
    drop_key(id, content.source, content.message_id)
    if content.collapse_key then remove_from_collapse(content.collapse_key, id) end
    leave_line({id = id})
  end
  for page, count in pairs(pages) do
    if call('HINCRBY', PAGES, page, -count) == 0 then
      call('HDEL', PAGES, page)
      call('ZREM', INDEX, page)
    end
  end
  if set ~= DONE and joins then joins.messages_deleted(ids, set == DLQ) end
  write('HDEL', MESSAGES, ids)
  write('HDEL', STATES, ids)
  write('ZREM', set, ids)
end

-- Returns those of the ids that may be deleted, with their contents. A done message stays while it deduplicates.
-- `sliding`: the age counts from `last_seen`.
local function deletable(ids, cutoff, sliding)
  local records, bodies = fetch('HMGET', STATES, ids), fetch('HMGET', MESSAGES, ids)
  local old, contents = {}, {}
  for index, id in ipairs(ids) do
    local progress, content = read_progress(records[index]), content_of(bodies[index])
    local last_seen = progress[LAST_SEEN] ~= 0 and progress[LAST_SEEN] or content.first_seen
    local is_done = progress[STATE] == 'd'
    local deduplicates = is_done and policy.window and content.first_seen + policy.window > now
    local too_young = progress[COMPLETED_AT] ~= 0 and progress[COMPLETED_AT] > cutoff
    if not (deduplicates or too_young or (sliding and last_seen > cutoff)) then
      old[#old + 1], contents[#contents + 1] = id, content
    end
  end
  return old, contents
end

-- Deletes done messages in the order of completion. `skip`: that many of the oldest are known to stay. Returns how many were
-- deleted, how many stay, and how many were read.
local function purge_done(cutoff, most, skip)
  local ids = call('ZRANGEBYSCORE', DONE, '-inf', cutoff, 'LIMIT', skip, most)
  local old, contents = deletable(ids, cutoff, policy.sliding)
  delete(old, contents, DONE)
  return #old, #ids - #old, #ids
end

-- Deletes a few done messages that are old enough, starting at a varying position: messages that must stay do not hide the
-- others. Deletes a few ended joins too.
local function sweep(cutoff, most)
  local count = call('ZCOUNT', DONE, '-inf', cutoff)
  if count == 0 then return end
  purge_done(cutoff, most, count > most and now % (count - most + 1) or 0)
  if joins then joins.purge(cutoff, most) end
end
