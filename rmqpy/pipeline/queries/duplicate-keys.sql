-- Keys that several messages of a topic have, without retries and dead letters, which repeat a message.
select
  topic,
  key,
  count(*) as messages,
  count(distinct properties['UNIQ_KEY']) as sends,
  min(storeTimestamp) as first,
  max(storeTimestamp) as last
from (
  select topic, properties, storeTimestamp, explode(array_distinct(split(keys, ' '))) as key
  from messages
  where not startswith(topic, '%RETRY%') and not startswith(topic, '%DLQ%')
)
where key <> ''
group by 1, 2
having count(*) > 1
order by messages desc, topic, key
