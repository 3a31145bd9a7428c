"""Manages a pet as an agent does, without a model: through config/mcp_bridge.py, with a key of plan Free.

    agent.py BRIDGE HOST KEY

The bridge sends texts only, so an agent cannot upload an image; it gives a pet the URL of one.
"""

import asyncio
import os
import subprocess
import sys

from fastmcp import Client
from fastmcp.client.transports import PythonStdioTransport
from fastmcp.exceptions import ToolError

bridge, host, key = sys.argv[1:]
TOOLS = {
    "addPet",
    "deleteImage",
    "deletePet",
    "deleteUser",
    "findPetsByStatus",
    "findPetsByTags",
    "getLimits",
    "getPetById",
    "getUserByName",
    "listImages",
    "listPets",
    "logoutUser",
    "patchPet",
    "suggestTags",
    "updatePet",
    "updateUser",
}
# What is wrong with the settings, by what the bridge says.
MISTAKES = {
    "no key; set PET_INVENTORY_KEY": {"PET_INVENTORY_KEY": ""},
    "contains invalid characters": {"PET_INVENTORY_KEY": "pik_ключ"},
    "mistyped, expired or revoked": {"PET_INVENTORY_KEY": key + "0"},
    "no response from http://127.0.0.1:1/api/v3": {"PET_INVENTORY_URL": "http://127.0.0.1:1"},
    "is not the service": {"PET_INVENTORY_URL": host + "/docs"},
}


async def main():
    environment = {"PET_INVENTORY_URL": host, "PET_INVENTORY_KEY": key}
    async with Client(PythonStdioTransport(bridge, env=environment)) as agent:
        tools = {tool.name: tool.description for tool in await agent.list_tools()}
        assert set(tools) == TOOLS, set(tools) ^ TOOLS
        # A model sees the description, not the summary.
        assert tools["deletePet"].startswith("Delete a pet. Its images are deleted, too."), tools["deletePet"]

        pet = await call(agent, "addPet", name="Rex", photoUrls=["https://example.com/rex.jpg"], tags=[{"name": "mcp"}])
        found = await call(agent, "findPetsByTags", tags=["mcp", "none"])
        assert pet in found, found
        changed = await call(agent, "patchPet", petId=pet["id"], name="Max")
        assert changed == {**pet, "name": "Max"}, changed
        await call(agent, "deletePet", petId=pet["id"])
        error = await fails(agent, "getPetById", petId=pet["id"])
        assert "404" in error and "does not exist" in error, error

        # One a second is regained.
        for _ in range(90):
            try:
                await call(agent, "listPets", limit=1)
            except ToolError as error:
                assert "limit" in str(error).lower(), error
                return
        raise AssertionError("not limited")


async def call(agent, tool, **arguments):
    result = (await agent.call_tool(tool, arguments)).structured_content
    # A tool returns an object; a list is in one.
    return result.get("result", result)


async def fails(agent, tool, **arguments):
    try:
        await agent.call_tool(tool, arguments)
    except ToolError as error:
        return str(error)
    raise AssertionError(f"{tool} did not fail")


for reason, setting in MISTAKES.items():
    environment = {**os.environ, "PET_INVENTORY_URL": host, "PET_INVENTORY_KEY": key, **setting}
    ended = subprocess.run([sys.executable, bridge], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stdout == "", ended
    assert reason in ended.stderr and ended.stderr.count("\n") == 1, ended.stderr
    assert key not in ended.stderr, "the key is in the message"
asyncio.run(main())
