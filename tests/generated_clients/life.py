"""A full life of a pet, an order and a user, by a client that openapi-generator made.

    life.py PACKAGE HOST KEY

PACKAGE is petstore_public, made from the public Petstore v3 document, or petstore_ours, made from the
service's own. KEY may do everything. Whatever the public one cannot do by itself is done by hand here, and
stands in the README under "Coming from Petstore".
"""

import importlib
import json
import sys
from datetime import datetime, timezone

package, host, key = sys.argv[1:]
client = importlib.import_module(package)
is_public = package == "petstore_public"


def api_client(header, value):
    """A client that shows one credential, whatever its document says of each operation."""
    made = client.ApiClient(client.Configuration(host=f"{host}/api/v3"))
    made.set_default_header(header, value)
    return made


def created(call, *arguments):
    """The JSON that something answers with 201, which the public document does not have."""
    answer = call(*arguments)
    assert answer.status_code == 201, answer
    # Of a status that its document does not have, a client gives no model; the body is there.
    assert (answer.data is None) == is_public, answer
    return json.loads(answer.raw_data)


def fails(status, call, *arguments):
    """Checks that a call fails with that status, in words that Petstore's ApiResponse has room for."""
    try:
        call(*arguments)
    except client.ApiException as error:
        assert error.status == status, error
        problem = json.loads(error.body)
        assert problem["code"] == status and problem["message"], problem
        return
    raise AssertionError(f"{call} does not fail with {status}")


def pet(shop):
    pets = client.PetApi(shop)
    new = client.Pet if is_public else client.NewPet
    rex = new(
        name="Rex",
        category=client.Category(id=1, name="Dogs"),
        photo_urls=["https://example.com/rex.jpg"],
        tags=[client.Tag(id=1, name="friendly")],
        status="available",
    )
    number = created(pets.add_pet_with_http_info, rex)["id"]
    got = pets.get_pet_by_id(number)
    assert (got.name, got.category.name, got.photo_urls) == ("Rex", "Dogs", rex.photo_urls), got
    changed = (client.Pet if is_public else client.PetReplacement)(
        id=number, name="Rexi", photo_urls=[], tags=[client.Tag(name="big")]
    )
    assert pets.update_pet(changed).name == "Rexi"
    assert pets.update_pet_with_form(number, name="Max").name == "Max"
    statuses = "available" if is_public else ["available"]
    assert number in [it.id for it in pets.find_pets_by_status(statuses)]
    assert number in [it.id for it in pets.find_pets_by_tags(["big"])]
    pets.delete_pet(number)
    fails(404, pets.get_pet_by_id, number)
    return created(pets.add_pet_with_http_info, rex)["id"]


def order(shop, number):
    store = client.StoreApi(shop)
    before = counts(store.get_inventory())
    ship_date = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=timezone.utc)
    new = client.Order if is_public else client.NewOrder
    wanted = new(pet_id=number, quantity=1, ship_date=ship_date, status="approved", complete=False)
    placed = created(store.place_order_with_http_info, wanted)["id"]
    got = store.get_order_by_id(placed)
    assert (got.pet_id, got.quantity, got.ship_date) == (number, 1, ship_date), got
    after = counts(store.get_inventory())
    assert after["pending"] == before["pending"] + 1, (before, after)
    fails(409, store.place_order, wanted)
    store.delete_order(placed)
    fails(404, store.get_order_by_id, placed)
    assert counts(store.get_inventory()) == before


def counts(inventory):
    return inventory if isinstance(inventory, dict) else inventory.to_dict()


def user(shop, number):
    strangers = client.UserApi(client.ApiClient(client.Configuration(host=f"{host}/api/v3")))
    new = client.User if is_public else client.NewUser
    password = "correct horse battery staple"
    name = f"{package} Ada"
    ada = new(username=name, first_name="Ada", email="ada@example.com", password=password)
    made = created(strangers.create_user_with_http_info, ada)
    assert "password" not in made, made
    fails(400, strangers.login_user, name, "wrong password")
    answer = strangers.login_user_with_http_info(name, password)
    headers = {name.lower() for name in answer.headers}
    assert {"x-expires-after", "x-rate-limit"} <= headers, headers
    session = api_client("Authorization", f"Bearer {answer.data}")
    users = client.UserApi(session)
    assert users.get_user_by_name(name).first_name == "Ada"
    changed = client.User if is_public else client.UserDetails
    users.update_user(name, changed(username=name, last_name="Lovelace"))
    assert users.get_user_by_name(name).last_name == "Lovelace"

    # As a customer: see a pet, order it, and take the order back; never change the pet.
    assert client.PetApi(session).get_pet_by_id(number).id == number
    store = client.StoreApi(session)
    mine = created(store.place_order_with_http_info, (client.Order if is_public else client.NewOrder)(pet_id=number))
    assert store.get_order_by_id(mine["id"]).pet_id == number
    store.delete_order(mine["id"])
    fails(403, client.PetApi(session).delete_pet, number)

    users.logout_user()
    fails(401, users.get_user_by_name, name)
    admins = client.UserApi(shop)
    listed = [new(username=f"{package} {n}") for n in range(3)]
    if is_public:
        # Its document says that a list of users is answered with one.
        answer = admins.create_users_with_list_input_without_preload_content(listed)
        assert answer.status == 200
        listed = json.loads(answer.data)
        names = [it["username"] for it in listed]
    else:
        names = [it.username for it in admins.create_users_with_list_input(listed)]
    assert names == [f"{package} {n}" for n in range(3)], names
    for made in [name, *names]:
        admins.delete_user(made)
        fails(404, admins.get_user_by_name, made)


everything = api_client("api_key", key)
its_number = pet(everything)
order(everything, its_number)
user(everything, its_number)
client.PetApi(everything).delete_pet(its_number)
print(f"{package}: a pet, an order and a user have lived")
