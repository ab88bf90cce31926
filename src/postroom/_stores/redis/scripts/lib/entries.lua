-- Entries: a message's progress (a record in `states`) and its content (in `messages`).

-- Returns the progress of a message that was put and never touched. It has no record in `states`.
local function untouched()
  local progress = {}
  progress[STATE], progress[FENCE], progress[ATTEMPT], progress[DELIVERIES], progress[REVISION] = 'w', 0, 0, 0, 0
  progress[LAST_SEEN], progress[EXPIRES], progress[OWNER], progress[STALE], progress[COMPLETED_AT] = 0, 0, '', 0, 0
  progress[ENDING], progress[LAST_ERROR], progress[LOST_LEASES], progress[DELAYED] = '', false, 0, false
  return progress
end
local UNTOUCHED = untouched()

-- Returns the progress in a record, to read only. The messages of a batch mostly have equal records: each different one is
-- unpacked once, and equal records give the same table.
local progress_of_record = {}
local function read_progress(record)
  if not record then return UNTOUCHED end
  local progress = progress_of_record[record]
  if not progress then
    progress = unpack_message(record)
    progress_of_record[record] = progress
  end
  return progress
end

-- Returns a copy of a progress, to be changed and packed.
local function copy(progress)
  local copied = {}
  for position = 1, #UNTOUCHED do copied[position] = progress[position] end
  return copied
end

-- Returns the content in `body`, a value of `messages`, by field names. `rest` is the offset of what scripts do not read:
-- headers and payload.
local function content_of(body)
  local values = {cmsgpack.unpack_limit(body, #CONTENT)}
  local content = {body = body, rest = values[1]}
  for position, name in ipairs(CONTENT) do content[name] = values[position + 1] end
  return content
end

-- An entry to change: write to `entry.progress`, then call `save`. `entry.content` is read at first use.
local Entry = {__index = function(entry, name)
  if name == 'content' then
    local content = content_of(call('HGET', MESSAGES, entry.id))
    rawset(entry, 'content', content)
    return content
  end
end}

local function load(id)
  local record = call('HGET', STATES, id)
  return setmetatable({id = id, progress = record and unpack_message(record) or untouched()}, Entry)
end

local function save(entry)
  call('HSET', STATES, entry.id, pack(entry.progress))
end

-- Returns a time as the first field of a content: always 9 bytes.
local function pack_time(time)
  return struct.pack('>BI8', 0xcf, time)
end

-- Returns headers and payload as they are packed.
local function rest_of(content)
  return sub(content.body, content.rest + 1)
end

-- Returns the payload as it is packed.
local function payload_of(content)
  local offset = cmsgpack.unpack_one(content.body, content.rest) -- behind the headers
  return sub(content.body, offset + 1)
end

local function topic_of(body)
  return (select(TOPIC + 1, cmsgpack.unpack_limit(body, TOPIC)))
end

-- True if a known key had other content: another topic, or another hash of the same algorithm. A key that was only recorded
-- or marked has no topic. The same rule as `Draft.contradicts`.
local function contradicts(new, old)
  if new.topic ~= '' and old.topic ~= '' and new.topic ~= old.topic then return true end
  return new.hash and old.hash and new.hash_algorithm == old.hash_algorithm and new.hash ~= old.hash or false
end

-- Writes the content of a message and returns it. `rest`: headers and payload as they are packed.
local function write_content(id, content, rest)
  local parts = {pack_time(content.first_seen)}
  for position = 2, #CONTENT do parts[position] = pack(content[CONTENT[position]]) end
  local body = concat(parts) .. rest
  call('HSET', MESSAGES, id, body)
  return content_of(body)
end

-- Deletes headers and payload of a message.
local function blank(entry)
  local content = entry.content
  content.format = 'text'
  entry.content = write_content(entry.id, content, pack(nil, ''))
end

-- Makes the result of a guarded handler the payload of its record. `result`: the format, and the place of the packed payload
-- in ARGV[4], from `first` to `last`.
local function keep_result(entry, result)
  local content = entry.content
  content.format = result.format
  entry.content = write_content(entry.id, content, pack(nil) .. sub(ARGV[4], result.first, result.last))
end

-- Ids per member of `index`.
local PAGE = 1024

-- `concat` makes, and Lua hashes, several strings on the way to a result above 8 KiB.
local CHUNK_BYTES = 8000

-- Joins packed values of `fields` fields each, to fewer and longer strings. Between two of them it puts the header of a
-- MessagePack array, with which the client joins the results in the same way.
local function join_rows(rows, fields)
  local header = struct.pack('>BI2', 0xdc, fields)
  local chunks, first, size = {}, 1, 0
  for index, row in ipairs(rows) do
    if size + #row > CHUNK_BYTES and index > first then
      chunks[#chunks + 1] = concat(rows, header, first, index - 1)
      first, size = index, 0
    end
    size = size + #row + #header
  end
  if #rows > 0 then chunks[#chunks + 1] = concat(rows, header, first, #rows) end
  return chunks
end

-- Returns the number of leases that a message has lost in a row. A message that is still claimed has just lost another one:
-- this is asked of messages that are about to be claimed.
local function lost_leases(progress)
  return progress[STATE] == 'c' and progress[LOST_LEASES] + 1 or progress[LOST_LEASES]
end

-- Returns the fence of the next claim. It has the time in it: after a server has lost its last writes, no fence is given out
-- twice.
local FIRST_FENCE = math.floor(now / 1000)
local function next_fence(progress)
  return math.max(progress[FENCE] + 1, FIRST_FENCE)
end

-- Returns why a message must become dead instead of being claimed, or nil.
local function cause_of_death(progress)
  if progress[EXPIRES] ~= 0 and progress[EXPIRES] <= now then return 'expired' end
  if policy.max_deliveries and progress[DELIVERIES] >= policy.max_deliveries then return 'delivery limit' end
  if policy.max_lost_leases and lost_leases(progress) >= policy.max_lost_leases then return 'delivery limit' end
end

-- True if the message may be the reason why its workers die. A claim takes at most one such message, and nothing else.
local function is_suspect(progress)
  local lost = lost_leases(progress)
  if lost == 0 then return false end
  return lost >= policy.suspect_from
    or (policy.max_deliveries ~= nil and progress[DELIVERIES] + 1 >= policy.max_deliveries)
end
