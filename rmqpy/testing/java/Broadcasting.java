import java.lang.reflect.Method;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;

/** Lets a consumer broadcast with a client of any version: the enum of the message models has moved in 5.0. */
final class Broadcasting {
    static void use(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : consumer.getClass().getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                for (Object model : method.getParameterTypes()[0].getEnumConstants()) {
                    if (model.toString().equals("BROADCASTING")) {
                        method.invoke(consumer, model);
                    }
                }
            }
        }
    }
}
