// The Go client of RocketMQ, which reads commands as lines and writes JSON lines, as the probe in Java does: it reads
// "command name=value ..." and writes events, the last of which is "done" or "fault".
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

type event map[string]interface{}

type options map[string][]string

var (
	output sync.Mutex
	names  int64
)

func (e event) print(name string) {
	e["event"] = name
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

func (o options) text(name, otherwise string) string {
	if values := o[name]; len(values) > 0 {
		return values[0]
	}
	return otherwise
}

func (o options) number(name string, otherwise int) int {
	value, err := strconv.Atoi(o.text(name, strconv.Itoa(otherwise)))
	if err != nil {
		panic(err)
	}
	return value
}

func (o options) milliseconds(name string, otherwise int) time.Duration {
	return time.Duration(o.number(name, otherwise)) * time.Millisecond
}

func (o options) servers() primitive.NamesrvAddr {
	return primitive.NamesrvAddr{o.text("namesrv", "")}
}

func freshName(kind string) string {
	return fmt.Sprintf("%s-%d-%d", kind, os.Getpid(), atomic.AddInt64(&names, 1))
}

// Return the body that every probe sends in its message of this number.
func body(index, size int) []byte {
	made := make([]byte, size)
	for j := range made {
		made[j] = byte(31*index + 7*j)
	}
	return made
}

func message(o options, index int) *primitive.Message {
	sizes := strings.Split(o.text("sizes", "100"), ",")
	size, err := strconv.Atoi(sizes[index%len(sizes)])
	if err != nil {
		panic(err)
	}
	made := primitive.NewMessage(o.text("topic", ""), body(index, size))
	if keys := o.text("keys", ""); keys != "" {
		made.WithKeys([]string{keys + strconv.Itoa(index)})
	}
	if tags := o.text("tags", ""); tags != "" {
		all := strings.Split(tags, ",")
		made.WithTag(all[index%len(all)])
	}
	for _, property := range o["property"] {
		name, value, _ := strings.Cut(property, ":")
		made.WithProperty(name, value)
	}
	if level := o.number("delay", 0); level > 0 {
		made.WithDelayTimeLevel(level)
	}
	if keys := o.number("shards", 0); keys > 0 {
		made.WithShardingKey("shard-" + strconv.Itoa(index%keys))
	}
	return made
}

func printSent(index int, result *primitive.SendResult, err error) {
	if err != nil {
		event{"index": index, "error": err.Error()}.print("failed")
		return
	}
	event{
		"index": index, "status": int(result.Status), "msgId": result.MsgID, "offsetMsgId": result.OffsetMsgID,
		"queueId": result.MessageQueue.QueueId, "queueOffset": result.QueueOffset,
	}.print("sent")
}

func send(o options) error {
	mode := o.text("mode", "sync")
	choice := producer.WithQueueSelector(producer.NewRoundRobinQueueSelector())
	if o.number("shards", 0) > 0 {
		choice = producer.WithQueueSelector(producer.NewHashQueueSelector())
	}
	client, err := rocketmq.NewProducer(producer.WithNameServer(o.servers()), producer.WithRetry(2), choice,
		producer.WithGroupName(o.text("group", "go-producers")), producer.WithInstanceName(freshName("producer")))
	if err != nil {
		return err
	}
	if err = client.Start(); err != nil {
		return err
	}
	defer client.Shutdown()
	first, count := o.number("first", 0), o.number("count", 1)
	var all []*primitive.Message
	var under sync.WaitGroup
	for index := first; index < first+count; index++ {
		one := message(o, index)
		switch mode {
		case "sync":
			// Sends again for a time, as a program does that must not lose a message.
			giveUp := time.Now().Add(o.milliseconds("retryMs", 0))
			result, err := client.SendSync(context.Background(), one)
			for err != nil && time.Now().Before(giveUp) {
				time.Sleep(100 * time.Millisecond)
				result, err = client.SendSync(context.Background(), one)
			}
			printSent(index, result, err)
		case "async":
			under.Add(1)
			number := index
			err := client.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
				printSent(number, result, err)
				under.Done()
			}, one)
			if err != nil {
				return err
			}
		case "oneway":
			if err := client.SendOneWay(context.Background(), one); err != nil {
				return err
			}
		case "batch":
			all = append(all, one)
		default:
			return fmt.Errorf("no mode %s", mode)
		}
	}
	under.Wait()
	if mode == "batch" {
		result, err := client.SendSync(context.Background(), all...)
		printSent(first, result, err)
	}
	if mode == "oneway" {
		time.Sleep(500 * time.Millisecond) // Closing the connection drops unsent messages.
	}
	return nil
}

// The outcomes that a transactional producer returns at first and when it is checked: a letter for each message.
type answers struct {
	outcomes, checks string
}

func state(letter byte) primitive.LocalTransactionState {
	switch letter {
	case 'c':
		return primitive.CommitMessageState
	case 'r':
		return primitive.RollbackMessageState
	}
	return primitive.RollbackMessageState + 1 // Its name has changed in 2.1.3.
}

func number(keys string) int {
	value, _ := strconv.Atoi(strings.TrimLeft(keys, "abcdefghijklmnopqrstuvwxyz-"))
	return value
}

func (a answers) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	return state(a.outcomes[number(one.GetKeys())%len(a.outcomes)])
}

func (a answers) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	index := number(one.GetKeys())
	letter := a.checks[index%len(a.checks)]
	event{"index": index, "answer": string(letter), "topic": one.Topic, "crc": crc32.ChecksumIEEE(one.Body)}.print("checked")
	return state(letter)
}

func transact(o options) error {
	client, err := rocketmq.NewTransactionProducer(answers{o.text("outcomes", "c"), o.text("checks", "c")},
		producer.WithNameServer(o.servers()), producer.WithGroupName(o.text("group", "go-transactions")),
		producer.WithInstanceName(freshName("transactions")))
	if err != nil {
		return err
	}
	if err = client.Start(); err != nil {
		return err
	}
	defer client.Shutdown()
	for index := 0; index < o.number("count", 1); index++ {
		result, err := client.SendMessageInTransaction(context.Background(), message(o, index))
		if err != nil {
			printSent(index, nil, err)
			continue
		}
		printSent(index, result.SendResult, nil)
	}
	time.Sleep(o.milliseconds("lingerMs", 0))
	return nil
}

func consume(o options) error {
	ordered := o.text("mode", "concurrently") == "orderly"
	model := consumer.Clustering
	if o.text("model", "clustering") == "broadcasting" {
		model = consumer.BroadCasting
	}
	settings := []consumer.Option{
		consumer.WithNameServer(o.servers()), consumer.WithGroupName(o.text("group", "")),
		consumer.WithInstance(freshName("consumer")), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(ordered), consumer.WithConsumerModel(model),
		consumer.WithSuspendCurrentQueueTimeMillis(300 * time.Millisecond),
	}
	if times := o.number("maxTimes", -1); times >= 0 {
		settings = append(settings, consumer.WithMaxReconsumeTimes(int32(times)))
	}
	client, err := rocketmq.NewPushConsumer(settings...)
	if err != nil {
		return err
	}
	var count int64
	last := time.Now().UnixNano()
	refuse := int32(o.number("refuse", 0))
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: o.text("expression", "*")}
	if o.text("type", "TAG") == "SQL92" {
		selector.Type = consumer.SQL92
	}
	err = client.Subscribe(o.text("topic", ""), selector,
		func(_ context.Context, found ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			taken := true
			for _, one := range found {
				taken = taken && one.ReconsumeTimes >= refuse
				printReceived(one)
			}
			atomic.StoreInt64(&last, time.Now().UnixNano())
			atomic.AddInt64(&count, int64(len(found)))
			if taken {
				return consumer.ConsumeSuccess, nil
			}
			if ordered {
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			return consumer.ConsumeRetryLater, nil
		})
	if err != nil {
		return err
	}
	if err = client.Start(); err != nil {
		return err
	}
	most, idle := int64(o.number("max", 1<<30)), o.milliseconds("idleMs", 1500)
	firstBy := time.Now().Add(o.milliseconds("firstMs", 10000))
	for atomic.LoadInt64(&count) < most {
		quiet := time.Since(time.Unix(0, atomic.LoadInt64(&last)))
		if atomic.LoadInt64(&count) > 0 && quiet >= idle || atomic.LoadInt64(&count) == 0 && time.Now().After(firstBy) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond) // The last result is still being sent.
	return client.Shutdown()
}

func printReceived(one *primitive.MessageExt) {
	event{
		"topic": one.Topic, "queueId": one.Queue.QueueId, "queueOffset": one.QueueOffset, "flag": one.Flag,
		"sysFlag": one.SysFlag, "reconsumeTimes": one.ReconsumeTimes, "bodyLength": len(one.Body),
		"crc": crc32.ChecksumIEEE(one.Body), "properties": one.GetProperties(), "msgId": one.MsgId,
		"bornTimestamp": one.BornTimestamp, "storeTimestamp": one.StoreTimestamp,
	}.print("received")
}

func run(line string) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%v", fault)
		}
	}()
	words := strings.Fields(line)
	given := options{}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		text, err := url.QueryUnescape(value)
		if err != nil {
			return err
		}
		given[name] = append(given[name], text)
	}
	switch words[0] {
	case "send":
		return send(given)
	case "transact":
		return transact(given)
	case "consume":
		return consume(given)
	}
	return fmt.Errorf("no command %s", words[0])
}

func main() {
	event{}.print("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := run(lines.Text()); err != nil {
			event{"error": err.Error()}.print("fault")
		} else {
			event{}.print("done")
		}
	}
}
