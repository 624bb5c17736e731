"""The ClientApp: fedclust's, with the settings of the paper."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedclust.client_app import app as fedclust_app
from fedgwc.settings import translated


class App(ClientApp):
    """Hand every message to fedclust's app."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Reply to a message."""
        return fedclust_app(message, translated(context))


app = App()
