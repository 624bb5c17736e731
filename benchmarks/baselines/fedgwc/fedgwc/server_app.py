"""The ServerApp: fedclust's, with the settings of the paper."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedclust.server_app import app as fedclust_app
from fedgwc.settings import translated

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation, and write its results."""
    fedclust_app(grid, translated(context))
