// One load of Apache's Go client; the same as client_load.py, with the same arguments and output.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	inFlight        = 256
	batchesInFlight = 16
	batchSize       = 16
	pullSize        = 32
	clockEvery      = 64

	// The broker and the queues of clients.py; this client has no way to ask for them.
	brokerName = "bench-broker"
	queues     = 4
)

var body = make([]byte, 128)

type meter struct {
	sync.Mutex
	count, startCount   int
	next                int
	begin, end, started time.Time
	startCPU            float64
}

func cpuSeconds() float64 {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

// add counts messages; it prints the result and ends the process when the time is over.
func (m *meter) add(messages int) {
	m.Lock()
	defer m.Unlock()
	m.count += messages
	if m.count < m.next {
		return
	}
	m.next = m.count + clockEvery
	now := time.Now()
	if m.started.IsZero() {
		if now.After(m.begin) {
			m.startCount, m.startCPU, m.started = m.count, cpuSeconds(), now
		}
	} else if now.After(m.end) {
		fmt.Printf("{\"messages\": %d, \"cpu_s\": %.6f, \"seconds\": %.6f}\n",
			m.count-m.startCount, cpuSeconds()-m.startCPU, now.Sub(m.started).Seconds())
		os.Exit(0)
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func message(topic string) *primitive.Message { return primitive.NewMessage(topic, body) }

func produce(mode string, namesrv primitive.NamesrvAddr, topic, group string, m *meter) {
	p, err := rocketmq.NewProducer(producer.WithNameServer(namesrv), producer.WithGroupName(group),
		producer.WithSendMsgTimeout(30*time.Second))
	check(err)
	check(p.Start())
	_, err = p.SendSync(context.Background(), message(topic))
	check(err)
	loops, once := 1, func() {
		check(p.SendOneWay(context.Background(), message(topic)))
		m.add(1)
	}
	switch mode {
	case "send":
		loops, once = inFlight, func() {
			_, err := p.SendSync(context.Background(), message(topic))
			check(err)
			m.add(1)
		}
	case "batch":
		loops, once = batchesInFlight, func() {
			messages := make([]*primitive.Message, batchSize)
			for i := range messages {
				messages[i] = message(topic)
			}
			_, err := p.SendSync(context.Background(), messages...)
			check(err)
			m.add(batchSize)
		}
	}
	for i := 0; i < loops; i++ {
		go func() {
			for {
				once()
			}
		}()
	}
}

func push(namesrv primitive.NamesrvAddr, topic, group string, m *meter) {
	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer(namesrv), consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	check(c.Subscribe(topic, consumer.MessageSelector{},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			m.add(len(messages))
			return consumer.ConsumeSuccess, nil
		}))
	check(c.Start())
}

// pull reads all queues from their first to their last message, again and again.
func pull(namesrv primitive.NamesrvAddr, topic, group string, m *meter) {
	c, err := rocketmq.NewPullConsumer(consumer.WithNameServer(namesrv), consumer.WithGroupName(group))
	check(err)
	check(c.Subscribe(topic, consumer.MessageSelector{}))
	check(c.Start())
	for {
		for queue := 0; queue < queues; queue++ {
			from := &primitive.MessageQueue{Topic: topic, BrokerName: brokerName, QueueId: queue}
			for offset := int64(0); ; {
				result, err := c.PullFrom(context.Background(), from, offset, pullSize)
				check(err)
				if result.Status != primitive.PullFound {
					break
				}
				offset = result.NextBeginOffset
				m.add(len(result.GetMessageExts()))
			}
		}
	}
}

func seconds(text string) time.Duration {
	value, err := strconv.ParseFloat(text, 64)
	check(err)
	return time.Duration(value * float64(time.Second))
}

func main() {
	rlog.SetLogLevel("error")
	mode, namesrv, topic, group := os.Args[1], primitive.NamesrvAddr{os.Args[2]}, os.Args[3], os.Args[4]
	now := time.Now()
	m := &meter{begin: now.Add(seconds(os.Args[6])), end: now.Add(seconds(os.Args[6]) + seconds(os.Args[5]))}
	switch mode {
	case "push":
		push(namesrv, topic, group, m)
	case "pull":
		pull(namesrv, topic, group, m)
	default:
		produce(mode, namesrv, topic, group, m)
	}
	select {}
}
