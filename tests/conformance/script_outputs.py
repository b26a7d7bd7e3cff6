"""The part of the script that shows things."""

from __future__ import annotations

from .exchange import cell

# One red pixel.
_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8Dw"
    "HwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)

OUTPUTS = (
    cell("print is shown", "print('hello', 'world')"),
    cell("stderr is shown", "import sys\nprint('to stderr', file=sys.stderr)"),
    cell(
        "sys.stdout can be written and flushed",
        "sys.stdout.write('w\\n'); sys.stdout.flush(); print('p')",
    ),
    cell("a long output arrives whole", "print('x' * 300_000)"),
    cell("many outputs arrive in order", "for n in range(100):\n    display(n)"),
    cell("a warning is shown", "import warnings\nwarnings.warn('careful')"),
    cell("a log record is shown", "import logging\nlogging.getLogger('a').warning('logged')"),
    cell("display shows without a result", "display('shown', {'a': [1, None, 2.5]})"),
    cell("display can be updated", "d = display('first', display_id='chosen')\nd.update('second')"),
    cell("a display in another cell can be updated", "d.update('third'); d"),
    cell("a display id can be drawn", "e = display(1, display_id=True); e.update(2)"),
    cell(
        "outputs can be cleared",
        "from IPython.display import *\nprint(1)\nclear_output()\nprint(2)",
    ),
    cell("outputs can be cleared later", "print(1)\nclear_output(wait=True)\nprint(2)"),
    cell("HTML is shown", "HTML('<b style=\"color: red\">bold</b>')"),
    cell(
        "Markdown, LaTeX and SVG are shown",
        "display(Markdown('*m*'), Latex('$x$'), SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>'))",
    ),
    cell("a PNG is shown", f"import base64\nImage(data=base64.b64decode('{_PNG}'), width=5)"),
    cell("JSON is shown", "JSON({'a': [1, {'b': None}]}, expanded=True)"),
    cell(
        "any MIME type is shown",
        "display({'text/plain': 'p', 'application/x-own+json': {'k': [1]}}, raw=True, metadata={'m': 1}, transient={'t': 2})",
    ),
    cell(
        "an object may choose how it is shown",
        "class M:\n    def _repr_mimebundle_(self, **_):\n        return {'text/html': '<i>m</i>', 'text/plain': 'm'}, {'text/html': {'isolated': True}}\nM()",
    ),
    cell("an object without a repr is shown", "object()"),
    cell(
        "a data frame is shown as HTML",
        "import pandas\npandas.DataFrame({'a': [1, 2], 'b': ['x', 'y']})",
    ),
    cell("a command's output is shown", "!echo from the shell"),
    cell("a command's output can be kept", "lines = !printf 'a\\nb\\n'\nlines"),
    cell("a command's failure is kept", "!exit 3\n_exit_code"),
    cell("%%bash runs a script", "%%bash\nfor n in 1 2; do echo line $n; done\necho wrong >&2"),
    cell("%%bash tells of a failure", "%%bash\nexit 4"),
    cell("%%capture takes the output", "%%capture taken\nprint('taken')\ndisplay(1)"),
    cell("captured output can be shown", "taken()\ntaken.stdout"),
    cell("%%html shows HTML", "%%html\n<p>paragraph</p>"),
    cell("%cd changes the folder", "import tempfile\n%cd -q {tempfile.mkdtemp()}"),
    cell(
        "%%writefile writes a file", "%%writefile own.py\nprint('own file', __name__)\nfrom_run = 1"
    ),
    cell("a written file can be run", "%run own.py\nfrom_run"),
    cell("%who lists variables", "%who int"),
    cell("%precision changes the display", "%precision 3\n3.14159265"),
    cell("?obj fills the pager", "?len"),
    cell("obj?? fills the pager with the source", "f??"),
    cell("a next input can be set", "get_ipython().set_next_input('next = 1')"),
    cell("%load fills the next input", "%load own.py"),
    cell("%%timeit's like are timed", "%time 1 + 1"),
    cell("a widget is shown", "import ipywidgets\nipywidgets.IntSlider(value=3)"),
)
