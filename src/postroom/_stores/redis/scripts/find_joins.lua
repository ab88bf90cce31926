-- needs: entries joins
-- Finds joins, in the order of their numbers. Arguments: `after` (a number), `limit`, `reads`: joins that one call reads at
-- most; `ids`, `tenant_id` and `statuses` restrict. Returns a list of joins and their values as MessagePack, in turn; and the
-- `after` of the next call, or '' if there are no more.

-- Returns the joins to check, and whether there are no more behind them.
local function joins_to_check()
  if not args.ids then
    local found = call('ZRANGEBYSCORE', JOIN_INDEX, format('(%.0f', args.after), '+inf', 'LIMIT', 0, args.reads)
    return found, #found < args.reads
  end
  local found, numbers = {}, {}
  for index, number in ipairs(fetch('ZMSCORE', JOIN_INDEX, args.ids)) do
    local join = args.ids[index]
    if number and tonumber(number) > args.after then
      found[#found + 1] = join
      numbers[join] = tonumber(number)
    end
  end
  table.sort(found, function(one, other) return numbers[one] < numbers[other] end)
  return found, true
end

-- Returns the values of a join that matches, and its number.
local function values_of(content, record)
  local status, completed, failed = record.status, record.ended_completed, record.ended_failed
  if status == 'pending' then status, completed, failed = joins.status_by_steps(record), record.completed, record.failed end
  if args.statuses and not args.statuses[status] then return nil end
  if args.tenant_id and args.tenant_id ~= content.tenant_id then return nil end
  return pack({
    content.tenant_id, status, record.expected or false, record.attached, completed, failed, record.sealed,
    content.metadata or false, record.deadline or false, content.created_at, record.updated_at, content.number,
  })
end

if not joins then return {{}, ''} end
local checked, is_complete = joins_to_check()
local contents, records = fetch('HMGET', JOINS, checked), fetch('HMGET', JOIN_STATES, checked)
local found, number = {}, nil
for index, join in ipairs(checked) do
  local content = unpack_message(contents[index])
  local values = values_of(content, unpack_message(records[index]))
  number = content.number
  if values then
    found[#found + 1], found[#found + 2] = join, values
    if #found == 2 * args.limit then return {found, format('%.0f', number)} end
  end
end
return {found, is_complete and '' or format('%.0f', number)}
