"""What a README tells its reader to type."""

import re


def code_blocks(readme, language):
    """The fenced blocks of this language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", readme.read_text(), re.DOTALL | re.MULTILINE)


def write_files(readme, folder):
    """Writes the blocks that begin with `# file: name` into `folder`."""
    for language in ("yaml", "python"):
        for block in code_blocks(readme, language):
            if name := re.match(r"# file: (\S+)\n", block):
                (folder / name[1]).write_text(block)
